//! Entry points for the fuzz targets, built with `--cfg fuzzing`. Not part of the API.

use std::net::IpAddr;

use crate::extract::ClientIp;

/// Finds the client address in the lines of a forwarding header.
///
/// The lines may contain bytes that HTTP does not allow.
#[must_use]
pub fn follow(client_ip: &ClientIp, peer: IpAddr, lines: &[&[u8]]) -> Option<IpAddr> {
    client_ip
        .resolve_lines(Some(peer), lines.iter().copied())
        .found()
}
