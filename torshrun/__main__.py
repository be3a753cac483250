"""`python -m torshrun` is the torshrun command."""

from torshrun.cli import main

main()
