"""The launcher: starts, watches and restarts the worker processes of a training job."""
