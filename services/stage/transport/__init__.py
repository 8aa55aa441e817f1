"""Activations from stage to stage: `Sender` and `Receiver` are the two ends of a hop.

choice         which way an activation takes, by size and by what the stages share
shared_memory  a file of /dev/shm for one activation
chunks         pieces over NATS, on a subject of their own
pair           torch.distributed between two neighbours
credits        how much may be on its way
"""

from services.stage.transport.credits import EpochOver
from services.stage.transport.receiver import Receiver
from services.stage.transport.sender import Sender
from services.stage.transport.shared_memory import SharedMemory
from services.stage.transport.telemetry import HopMetrics

__all__ = ["EpochOver", "HopMetrics", "Receiver", "Sender", "SharedMemory"]
