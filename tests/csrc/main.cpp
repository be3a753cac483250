// torsh-core-tests [scenes|collectives|messages|faults|seeds]... [--seeds N] [--first-seed F] [--every K]
//                  [--verbose]
// torsh-core-tests lines
//
// Without a name all of them, and of the seeds N from F on (100 from 1). Of the
// others every K-th, where a sanitizer makes them slow. Ends with 0 if all went well,
// with 1 and the course that failed otherwise, and with SIGALRM if one hangs. "lines" prints how many cache
// lines ranks fetch from each other, for 2 to 192 of them.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lines.hpp"
#include "scenes.hpp"
#include "schedule.hpp"

namespace torsh::test {
namespace {

constexpr unsigned hangs = 300;  // seconds, after which a course is given up

struct Options {
  std::vector<std::string> parts;
  std::uint64_t seeds = 100, first_seed = 1, every = 1;
  bool verbose = false;

  bool wants(const char* part) const {
    if (parts.empty()) return true;
    for (const std::string& each : parts) {
      if (each == part) return true;
    }
    return false;
  }
};

[[noreturn]] void refuse(const char* word) {
  std::fprintf(stderr,
               "torsh-core-tests: %s is none of scenes, collectives, messages, faults, seeds, "
               "--seeds N, --first-seed F, --every K, "
               "--verbose\n",
               word);
  std::exit(2);
}

std::uint64_t number(const char* text) {
  char* end = nullptr;
  const std::uint64_t value = text != nullptr ? std::strtoull(text, &end, 10) : 0;
  if (text == nullptr || end == text || *end != '\0') refuse(text != nullptr ? text : "a missing number");
  return value;
}

Options parse(char** words) {
  Options options;
  for (; *words != nullptr; ++words) {
    const std::string word = *words;
    if (word == "--seeds") options.seeds = number(*++words);
    else if (word == "--first-seed") options.first_seed = number(*++words);
    else if (word == "--every") options.every = std::max<std::uint64_t>(number(*++words), 1);
    else if (word == "--verbose") options.verbose = true;
    else if (word == "collectives" || word == "scenes" || word == "messages" || word == "faults" || word == "seeds") options.parts.push_back(word);
    else refuse(*words);
  }
  return options;
}

// Why it failed; "" if it did not.
template <typename Play>
std::string reason_of_failure(Play play) {
  try {
    play();
  } catch (const Failure& failure) {
    return describe(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <typename Play>
bool passes(const Options& options, const std::string& title, const std::string& words, Play play) {
  if (options.verbose) std::fprintf(stderr, "%s: %s\n", title.c_str(), words.c_str());
  alarm(hangs);
  const std::string reason = reason_of_failure(play);
  alarm(0);
  if (!reason.empty()) std::fprintf(stderr, "FAILED %s: %s\n%s\n", title.c_str(), reason.c_str(), words.c_str());
  return reason.empty();
}

int run_all(const Options& options) {
  std::size_t done = 0, failed = 0;
  const auto take = [&](const std::string& title, const Course& course) {
    ++done;
    if (!passes(options, title, course.words(), [&] { run(course); })) ++failed;
  };
  for (const Scene& scene : scenes()) {
    if (!options.wants("scenes")) break;
    ++done;
    if (!passes(options, "scene", scene.name, scene.play)) ++failed;
  }
  const auto take_part = [&](const char* part, const std::vector<Course>& courses) {
    for (std::size_t i = 0; options.wants(part) && i < courses.size(); i += options.every) {
      take(part + (" " + std::to_string(i)), courses[i]);
    }
  };
  take_part("collectives", collectives());
  take_part("messages", messages());
  take_part("faults", faults());
  const std::uint64_t seeds = options.wants("seeds") ? options.seeds : 0;
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + seeds; ++seed) {
    take("seed " + std::to_string(seed), random_course(seed));
  }
  std::printf("%zu courses, %zu failed\n", done, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace torsh::test

int main(int, char** arguments) {
  if (arguments[1] != nullptr && std::strcmp(arguments[1], "lines") == 0) return torsh::test::print_lines(), 0;
  return torsh::test::run_all(torsh::test::parse(arguments + 1));
}
