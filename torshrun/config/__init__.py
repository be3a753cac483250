"""What the launcher was asked to do: one frozen LaunchConfig, valid before anything starts."""
