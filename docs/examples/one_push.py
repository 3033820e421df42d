"""One push, step by step, in one process: from a worker's gradient to a server's parameters, with all numbers.

    python docs/examples/one_push.py

Worker and server are the objects of a real job; here both have the same window, that of a job with a single rank.
"""

import numpy as np
from mpi4py import MPI

from mpidl.parameters import Range
from mpidl.rma import regions
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.mailboxes import Inbox
from mpidl.rma.outbox import Outbox
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.windows import Window
from mpidl.rules import Sgd
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.transport.capacity import MailboxGeometry

# A shard of 5 parameters, in chunks of 2 float64: a push has chunks 0, 1 and 2, the last with a single element.
part = Range(0, 5)
geometry = MailboxGeometry.of(part, workers=1, dtype=np.float64, chunk_bytes=16)
print(
    f"{geometry.chunks} chunks of {geometry.chunk} elements, a ring of {geometry.slots} slots of {geometry.slot} bytes"
)

# What the server offers in its window: the rings with their counters, and the parameters.
window = Window(MPI.COMM_SELF, {**regions.mailboxes(geometry), "parameters": (np.float64, part.size)})
bells = Doorbells(MPI.COMM_SELF)
name = regions.of_shard(0)
published, consumed, headers = (window.local(each) for each in (name.published, name.consumed, name.headers))

# The server's side: a shard that applies each push at once by plain SGD with a rate of 0.5, and its inbox.
parameters = window.local("parameters")
parameters[:] = 1.0
shard = Shard(part, parameters, ScheduledRule(Sgd(0.5)), ApplyAtOnce(), geometry.chunk)
inbox = Inbox(window, geometry, [0], bells)

# The worker's side: it fetched at clock 0, has computed this gradient on minibatch 7, and pushes it.
outboxes = Outboxes([Outbox(window, 0, 0, geometry)], [slice(*part)], bells)
gradient = np.array([0.0, 2.0, 4.0, 6.0, 8.0])
outboxes.begin(fetched=[0], batches=(7, 7))
delivered = outboxes.send(gradient)
print(f"the worker has written {outboxes.bytes} bytes: delivered {delivered}, published {published[0]}")
print("headers, slot by slot: push, chunk, fetched at clock, elements, first and last minibatch, encoded, order marked")
print(headers.reshape(geometry.slots, -1))

# The server finds the chunks, the last first, and gives each to the shard, whose policy gives it to the rule.
for worker in inbox.waiting():
    for message in inbox.drain(worker, most=8):
        complete = shard.receive_chunk(worker, message.chunk, message.fetched, message.values, message.batches)
        print(f"chunk {message.chunk} has {message.values}: parameters {parameters}, push complete {complete}")
print(f"the server shows consumed {consumed[0]}, clock {shard.clock}, staleness {shard.staleness.max}")
print(f"the worker sees that all is applied: {outboxes.applied()}")

bells.free()
window.free()
