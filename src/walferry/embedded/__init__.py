"""Boots real HBase, HDFS, Thrift and Airflow servers on this machine, for the demo, the tests and the benchmarks."""
