//! Ways in for the fuzz targets, which are built with `--cfg fuzzing`; no part of the API.

use std::net::IpAddr;

use crate::extract::ClientIp;

/// The walk over the lines of a header, with bytes in them that HTTP does not even allow.
#[must_use]
pub fn follow(client_ip: &ClientIp, peer: IpAddr, lines: &[&[u8]]) -> Option<IpAddr> {
    client_ip
        .resolve_lines(Some(peer), lines.iter().copied())
        .found()
}
