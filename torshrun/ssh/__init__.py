"""Runs jobs on hosts that a file lists: starts an agent on each by ssh, and watches it."""
