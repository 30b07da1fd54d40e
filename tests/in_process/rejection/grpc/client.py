"""What a Python client of gRPC sees of a limited service. Run by hand:

    pip install grpcio grpcio-status
    cargo run --features grpc --example tonic_server -- 127.0.0.1:50051 &
    python tests/in_process/rejection/grpc/client.py 127.0.0.1:50051 /example.Greeter/Greet

It calls the unary method with empty messages until it is denied, prints the status with its details, waits as RetryInfo
says, and calls once more. Exits with 1 when it was not denied, was told no wait, or was denied again after it.
"""

import sys
import time

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


def call(method):
    """The initial metadata of a success, or the error."""
    try:
        _, answer = method.with_call(b"", timeout=10)
        return answer.initial_metadata(), None
    except grpc.RpcError as error:
        return None, error


def limits(metadata):
    return {key: value for key, value in metadata if "ratelimit" in key or key == "retry-after"}


def main(server, path):
    with grpc.insecure_channel(server) as channel:
        method = channel.unary_unary(path)
        for count in range(1, 1_000):
            metadata, error = call(method)
            if error:
                break
            print(f"{count}: OK {limits(metadata)}")
        else:
            return "never denied"

        print(f"{count}: {error.code().name} {error.details()!r}")
        print("   metadata", limits(list(error.initial_metadata()) + list(error.trailing_metadata())))
        wait = None
        for detail in rpc_status.from_call(error).details:
            for kind in (error_details_pb2.RetryInfo, error_details_pb2.QuotaFailure):
                message = kind()
                if detail.Unpack(message):
                    print(f"   {kind.__name__}", str(message).strip().replace("\n", " "))
                    if kind is error_details_pb2.RetryInfo:
                        wait = message.retry_delay.ToTimedelta().total_seconds()
        if not wait:
            return "no wait was told"

        time.sleep(wait)
        metadata, error = call(method)
        if error:
            return f"denied again after {wait} s: {error.code().name}"
        print(f"after {wait} s: OK {limits(metadata)}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
