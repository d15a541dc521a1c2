"""Check one YAML file against the installed components and return it as a Config. Never imports PyTorch."""
