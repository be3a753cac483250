"""The exit codes of torshrun's own. Any other is a worker's: the root cause's, or 128 + n for
signal n that killed it. Those in the seventies are of sysexits.h where it has a fitting one.
"""

USAGE = 2
"""The command line, the environment or the configuration file is wrong; nothing was started."""
RENDEZVOUS = 69
"""The nodes did not find each other in time."""
LOST = 70
"""Supervision failed: the keeper died, the agent's lease ran out, or a mistake of our own."""
PREEMPTED = 75
"""Code of a job that was asked to make room (SIGTERM, or a notice workers died of): try later."""
BUDGET_SPENT = 79
"""Restarts were allowed, and all are used up."""
HUNG = 80
"""The workers made no progress for --hang-timeout."""
GPU_BROKEN = 81
"""A GPU of this node is broken: no job should run on it before it is reset or repaired."""
CANNOT_EXECUTE = 126
"""Code of a program that exists but could not be executed when it was started."""
NOT_FOUND = 127
"""Code of a program whose interpreter was missing when it was started."""
SIGNALLED = 128
"""Plus n: signal n (but SIGTERM) stopped the job."""
