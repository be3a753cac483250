"""torshctl render: one job file becomes the script or manifest that a scheduler or cloud takes."""
