"""walferry moves live HBase tables between clusters, and proves that nothing was lost."""

__version__ = "0.1.0"
