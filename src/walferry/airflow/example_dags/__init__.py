"""Example DAGs with walferry's operators; copy them into a DAGs folder and change the names."""
