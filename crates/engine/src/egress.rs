//! Outbound connections of a run to the outside: TCP, carried by this process.
//!
//! The node sends what is not for the cluster to a port of its own; from there it goes on as connections of this
//! process, like those of any other program of the machine. No rule, route or interface of the machine is needed.

use std::io;
use std::net::SocketAddrV4;
use std::time::Duration;

use remora_net::socket::original_destination;
use tokio::net::{TcpListener, TcpStream};

use crate::network::NODE_ADDRESS;

/// Where the node takes what goes outside.
pub(crate) const AT: SocketAddrV4 = SocketAddrV4::new(NODE_ADDRESS, 15999);
/// Longest time to get through to somebody outside.
const PATIENCE: Duration = Duration::from_secs(30);

/// Carries connections for ever.
pub(crate) async fn serve(listener: TcpListener) {
    loop {
        let Ok((inside, _)) = listener.accept().await else {
            // No descriptor is left for now.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Nobody there, or a connection that broke: whoever is inside sees their own connection end.
        tokio::spawn(carry(inside));
    }
}

async fn carry(mut inside: TcpStream) -> io::Result<()> {
    let wanted = original_destination(&inside)?;
    if wanted == AT.into() {
        // Somebody dialled this very port; going on would be a circle.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let mut outside = tokio::time::timeout(PATIENCE, TcpStream::connect(wanted)).await??;
    tokio::io::copy_bidirectional(&mut inside, &mut outside).await?;
    Ok(())
}
