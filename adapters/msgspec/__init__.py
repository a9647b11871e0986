"""Control messages and payloads as MessagePack, by msgspec."""
