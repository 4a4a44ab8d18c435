# Adds a line for the version; a real one would build and publish it.
echo "$1" >> releases/list.txt && echo "released $1"
