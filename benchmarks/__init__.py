"""Side-by-side benchmarks against the peers; each prints ratios taken from one run."""
