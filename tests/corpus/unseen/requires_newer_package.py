"""The script wants a version of a package that is not out yet, let alone installed.

nproc: 2
culprit: none
kind: version | import | exception
hint: ImportError|version|accelerate|required
needs: torch
seconds: 60
"""

from importlib.metadata import version

from packaging.version import Version


def require(package: str, wanted: str) -> None:
    found = version(package)
    if Version(found) < Version(wanted):
        raise ImportError(
            f"{package}>={wanted} is required for a normal functioning of this script, "
            f"but found {package}=={found}. Try: pip install -U {package}"
        )


def main() -> None:
    require("accelerate", "97.0.0.dev0")
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()


main()
