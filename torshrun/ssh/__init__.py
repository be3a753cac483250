"""Jobs on hosts that a file lists: an agent on each of them, started and watched over by ssh."""
