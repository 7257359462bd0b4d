"""What to change, by the kind of queue: one table that the advice of every rule about logs is taken from."""

from __future__ import annotations

from collections.abc import Mapping

#: Kind of a queue, as its probe names it, to the changes that take its entries out of memory, or bound them.
CHANGES: Mapping[str, tuple[str, ...]] = {
    "google-cloud-logging": (
        "google.cloud.logging.handlers.StructuredLogHandler() instead of CloudLoggingHandler: it writes to stdout",
        "client.setup_logging() takes that one by itself on Cloud Run and GKE",
        "else bound it: QueueHandler(queue.Queue(maxsize=10000)) before the handler, dropping on queue.Full",
        "on SIGTERM: handler.transport.flush(), then exit",
    ),
    "logging-winston": (
        "new LoggingWinston({ redirectToStdout: true }): entries go to stdout as JSON",
        "an error handler (defaultCallback: err => ...): without one a refused entry can end the process",
        "on SIGTERM: wait for the transport to finish, then exit; process.exit() loses what waits",
    ),
    "winston": ("transports: [new winston.transports.Console({ format: winston.format.json() })]",),
    "pino": (
        "pino.destination({ sync: false, minLength: 4096, maxLength: 1048576 }): what does not fit is dropped, with an event 'drop'",
        "on SIGTERM: logger.flush(callback), then exit",
    ),
    "bunyan": ("streams: [{ stream: process.stdout }]: entries go to stdout as JSON",),
    "stdout": (
        "stdout itself queues in Node's heap when its reader is slow: log less, or make the reader faster",
        "process.stdout._handle.setBlocking(true): the app then waits for its reader instead of queueing",
    ),
    "queue-handler": (
        "QueueHandler(queue.Queue(maxsize=10000)), dropping on queue.Full, with fewer or faster handlers behind the listener",
        "on SIGTERM: listener.stop(), which empties it",
    ),
    "otel-batch": (
        "OTEL_BLRP_MAX_QUEUE_SIZE=2048, OTEL_BLRP_MAX_EXPORT_BATCH_SIZE=512, OTEL_BLRP_SCHEDULE_DELAY=1000; a nearer collector",
        "on SIGTERM: logger_provider.shutdown(), which exports what waits",
    ),
    "go": (
        "slog.NewJSONHandler(os.Stdout, nil), zap's or zerolog's default: entries go to stdout, and nothing waits",
        "else bound it: make(chan Entry, 10000), and select with a default that drops and counts",
        "on SIGTERM: flush (logger.Sync(), client.Close()), then exit; os.Exit runs no defer",
    ),
    "fluent-bit": (
        "[SERVICE] storage.path /var/log/flb-storage/   [INPUT] storage.type filesystem",
        "[OUTPUT] storage.total_limit_size 500M; without the filesystem: [INPUT] Mem_Buf_Limit 50MB",
    ),
    "fluentd": (
        "<buffer> @type file, path /var/log/fluentd-buffer, total_limit_size 512MB, overflow_action drop_oldest_chunk </buffer>",
        "flush_thread_count 4: several chunks are sent at a time",
    ),
    "memory-handler": (
        "MemoryHandler(capacity=100, flushLevel=logging.ERROR, target=StreamHandler()): a smaller buffer, a target that does not wait",
    ),
    "app-queue": ("queue.Queue(maxsize=10000) and put_nowait(), dropping on queue.Full: one without a bound takes all memory",),
    "loguru": (
        "logger.add(sys.stdout, serialize=True) without enqueue: standard output takes entries as they come",
        "on SIGTERM: logger.complete(), which empties the queue",
    ),
    "logtail": ("write to standard output, and let Vector or the platform ship the entries to Better Stack",),
    "sentry": ("send fewer events: sample_rate, before_send; logs belong to standard output",),
    "vector": ('[sinks.NAME.buffer] type = "disk", max_size = 536870912, when_full = "block"',),
    "opentelemetry-collector": (
        "exporters.NAME.sending_queue: { storage: file_storage, queue_size: 1000 }, with the extension file_storage",
        "processors: memory_limiter first",
    ),
    "pipe": (
        "make the reader of stdout faster: it is the container runtime, a log agent, or what follows | in the command",
        "a bounded queue with a drop policy before stdout, so that a full pipe never stops the app",
        "log less: level, sampling",
    ),
    "directory": (
        "rotate and delete: RotatingFileHandler(maxBytes=10485760, backupCount=3), logrotate with copytruncate",
        "a deleted file is freed when the last process closes it: make the writer open its file anew",
    ),
}  # fmt: skip
#: The same for an app that writes to the log service itself, where its library is not known.
TO_STDOUT = (f"Node: {CHANGES['logging-winston'][0]}", f"Python: {CHANGES['google-cloud-logging'][0]}")
_ANY = ("write entries to stdout: the platform takes them from there", "bound the queue, and drop what does not fit")


def changes(kind: str) -> tuple[str, ...]:
    """What to change for a queue of this kind."""
    return CHANGES.get(kind, _ANY)
