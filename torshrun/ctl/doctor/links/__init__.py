"""The network between nodes: doctors that serve, and one that measures."""
