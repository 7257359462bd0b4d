"""``stallscope bench``: how fast a database is from here, and, for every cell of the matrix, what held it back."""
