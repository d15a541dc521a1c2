"""Building blocks of stages: recurrent cells, attention, search, loops that export."""
