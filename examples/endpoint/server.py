"""A booking service over HTTP, for the example beside it. Keeps everything in memory.

usage: server.py PORT
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ROOMS = [{"name": "attic", "seats": 4}, {"name": "hall", "seats": 40}]
bookings = {}
answers = {}


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, document, kind="application/json"):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def problem(self, status, title):
        self.answer(status, {"title": title, "status": status}, "application/problem+json")

    def do_GET(self):
        place = urlsplit(self.path)
        if place.path != "/rooms":
            return self.problem(404, "There is nothing here")
        seats = int(parse_qs(place.query).get("seats", ["1"])[0])
        self.answer(200, {"rooms": [room for room in ROOMS if room["seats"] >= seats]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer example":
            return self.problem(401, "Say who you are")
        # The same key again is the same booking.
        key = self.headers.get("Idempotency-Key")
        if key in answers:
            return self.answer(201, answers[key])
        room = self.path.split("/")[2]
        wanted = json.loads(body)
        if not any(known["name"] == room for known in ROOMS):
            return self.problem(404, "There is no such room")
        if (room, wanted["day"]) in bookings:
            return self.problem(409, "The room is taken on that day")
        booking = {"room": room, **wanted, "number": len(bookings) + 1}
        bookings[room, wanted["day"]] = booking
        if key:
            answers[key] = booking
        self.answer(201, booking)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
