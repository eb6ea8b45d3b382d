"""How results are shown to people: numbers in words, tables, and the JSON documents of the command line."""
