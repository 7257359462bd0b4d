"""``stallscope demo``: a stall made on real parts, each a process of its own that ends with it."""
