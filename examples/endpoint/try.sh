#!/bin/sh
# Starts the service on a free port, asks it through the gateway, and ends it.
set -eu
here=$(dirname "$0")
toolbooth=${TOOLBOOTH:-cargo run --release --quiet --}
said=$(mktemp)
python3 "$here/server.py" 0 > "$said" &
service=$!
trap 'kill "$service"; rm -f "$said"' EXIT
until grep -q listening "$said"; do sleep 0.1; done
BOOKINGS_PORT=$(sed 's/.*://' "$said")
export BOOKINGS_PORT
call() { echo "> $*"; $toolbooth --trust "$here/toolbooth.toml" --config "$here/toolbooth.toml" call "$@" || true; echo; }
call bookings.list_rooms --args '{"seats": 10}'
call bookings.book_room --args '{"room": "hall", "body": {"day": "2026-12-24", "name": "Ada"}}' --idempotency-key "christmas-$service"
call bookings.book_room --args '{"room": "hall", "body": {"day": "2026-12-24", "name": "Bo"}}'
call bookings.book_room --args '{"room": "Hall!", "body": {"day": "2026-12-24", "name": "Bo"}}'
