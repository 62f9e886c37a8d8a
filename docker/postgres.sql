-- Run once by the postgres image, when its volume is empty: two databases, each with an owner of its own.
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv ledger_password LEDGER_DB_PASSWORD
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE walferry LOGIN PASSWORD :'ledger_password';
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE walferry OWNER walferry;
REVOKE ALL ON DATABASE airflow, walferry FROM PUBLIC;
