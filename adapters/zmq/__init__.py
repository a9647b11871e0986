"""The control channel over ZeroMQ; :class:`stagelink.adapters.zmq.channel.ZmqChannel`."""
