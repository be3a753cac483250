"""Turns the user's request into one frozen LaunchConfig, which is valid before anything starts."""
