"""Write a first YAML for a file of records."""
