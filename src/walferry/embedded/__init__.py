"""Boots real HBase, HDFS, Thrift, Spark and Airflow servers on this machine, for demo, tests and benchmarks."""
