"""Claims of papers and lectures, each as one small experiment with a verdict: `python -m benchmarks.evidence`."""
