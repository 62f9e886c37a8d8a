"""Every change as a row of a Parquet file: the changes of tables as tables of history, without Kafka.

`rows` makes the rows, `files` the files, `commits` the records that say which files and positions there are, and `sink`
puts them together. `iceberg` gives the same files to Iceberg tables, which `catalog` says how to reach.
docs/history.md describes what is promised.
"""
