"""Boots real HBase, HDFS, Thrift, Spark and Airflow servers on this machine, for the demo, tests and benchmarks."""
