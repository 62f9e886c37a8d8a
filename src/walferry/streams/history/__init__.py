"""Every change as a row of a Parquet file: the changes of tables as tables of history, without Kafka.

`rows` makes the rows, `files` the files, `commits` the records that say which files and positions there are, and `sink`
puts them together. docs/history.md describes what is promised. Another form of the same files (such as Iceberg) belongs
beside `commits`: a commit names its files, and is numbered.
"""
