"""Reads TensorBoard's event files."""

import struct

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c


def events(directory):
    """Yield the events of a directory's files as TensorBoard reads them: by name, each up to what is damaged."""
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            body, checksum = content[12 : 12 + size], content[12 + size : 16 + size]
            if checksum != struct.pack("<I", masked_crc32c(body)):
                break
            yield Event.FromString(body)
            content = content[16 + size :]


def scalars(directory):
    """Return the points that TensorBoard shows: (step, value) by tag. A session makes all later points void."""
    points = {}
    for event in events(directory):
        if event.session_log.status == SessionLog.START:
            points = {tag: [each for each in found if each[0] < event.step] for tag, found in points.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                points.setdefault(value.tag, []).append((event.step, value.simple_value))
    return points
