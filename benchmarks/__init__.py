"""Side-by-side benchmarks against peers. Each prints ratios measured in one run."""
