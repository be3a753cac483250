# What building needs of the machine. Each of these stops with one line that says what is missing and
# how to get it, and leaves nothing in the cache that would hide it once it is there.

function(stop_for what)
  # A line that begins with a space is not broken into several.
  message(FATAL_ERROR " torshrun cannot be built: ${what}; or run scripts/setup in a checkout")
endfunction()

# A macro, since languages are to be enabled for the whole project.
macro(require_compilers)
  require_compiler(C)
  require_compiler(CXX)
  require_cxx20()
  enable_language(C)
  enable_language(CXX)
endmacro()

function(require_compiler language)
  include(CheckLanguage)
  check_language(${language})
  if(NOT CMAKE_${language}_COMPILER)
    unset(CMAKE_${language}_COMPILER CACHE)
    stop_for("there is no C++ compiler (apt-get install g++, or dnf install gcc-c++)")
  endif()
endfunction()

# Asks the compiler itself, since a language that was enabled once keeps its compiler.
function(require_cxx20)
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/cxx20.cpp")
  file(WRITE "${probe}" "#include <bit>\n#include <concepts>\n#include <span>\nint i = std::bit_cast<int>(1.0f);\n")
  set(compiler "${CMAKE_CXX_COMPILER}")
  execute_process(COMMAND "${compiler}" -std=c++20 -c "${probe}" -o "${probe}.o" RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
  if(refused)
    unset(CMAKE_CXX_COMPILER CACHE)
    stop_for("${compiler} does not know C++20, which GCC does from 11 on and Clang from 14 on (CXX names another compiler)")
  endif()
endfunction()

# A macro, since what is found is used by nanobind.
macro(require_python)
  if(TORSH_TARGET_HEADERS)
    take_target_python()
  else()
    find_python()
  endif()
endmacro()

# The Python that a wheel is for need not run here: of it there are the headers alone, and numpy's
# (scripts/wheels). What find_package(Python) would have told is told by them.
macro(take_target_python)
  file(STRINGS "${TORSH_TARGET_HEADERS}/patchlevel.h" version REGEX "define PY_VERSION ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" Python_VERSION "${version}")
  set(Python_INTERPRETER_ID Python)
  set(Python_INCLUDE_DIRS "${TORSH_TARGET_HEADERS}")
  set(Python_SOSABI abi3)
  add_executable(Python::Interpreter IMPORTED)
  foreach(component Module SABIModule NumPy)
    add_library(Python::${component} INTERFACE IMPORTED)
    target_include_directories(Python::${component} INTERFACE "${TORSH_TARGET_HEADERS}")
  endforeach()
  target_include_directories(Python::NumPy INTERFACE "${TORSH_TARGET_NUMPY}")
endmacro()

macro(find_python)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module)
  set(python "python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}")
  if(NOT Python_Development.Module_FOUND)
    stop_for("${Python_EXECUTABLE} has no Python.h (apt-get install ${python}-dev, or dnf install ${python}-devel)")
  endif()
  find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module NumPy)
  if(NOT Python_NumPy_FOUND OR Python_NumPy_VERSION VERSION_LESS 2)
    stop_for("${Python_EXECUTABLE} lacks the headers of numpy 2 or later, which serve numpy 1.26 too (pip install 'numpy>=2')")
  endif()
endmacro()

# Any Python that runs here will do, also where the wheel is for another one, or nothing is for Python.
# What the headers are made of is looked at whenever the project is built.
function(write_enumerations folder)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(NOT Python3_FOUND OR Python3_VERSION VERSION_LESS 3.11)
    stop_for("its headers are made by Python 3.11 or later, which is not there (apt-get install python3, or dnf install python3)")
  endif()
  set(script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/enumerations.py")
  set(sources enumerations.py status.py monitoring/layout.py)
  list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/torsh_runtime/")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${script}" ${sources})
  execute_process(COMMAND "${Python3_EXECUTABLE}" -I -S "${script}" "${folder}" RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR " torshrun cannot be built: ${script} has failed")
  endif()
endfunction()
