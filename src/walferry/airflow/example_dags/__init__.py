"""Example DAGs of walferry's operators; copy them into a DAGs folder and change the names."""
