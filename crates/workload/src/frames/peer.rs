//! The far end of the call, with the network between: a thread that stamps every packet with its
//! arrival and reflects it over loopback UDP. Both sockets take any free port and talk only to each
//! other.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, clock};

/// Bytes of a full packet: what video calls use, so that it fits any path.
pub(super) const PACKET: usize = 1200;
/// Bytes of a packet's header.
const HEADER: usize = 32;
/// The requested size of the sockets' buffers. The kernel gives at most `net.core.rmem_max`.
const BUFFER: usize = 1 << 20;

/// The header of a packet. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// The packet's number, from 1 on.
    pub(super) number: u64,
    /// When it was sent.
    pub(super) sent: u64,
    /// When it arrived at the peer.
    pub(super) arrived: u64,
    /// The number of the encoded frame that it belongs to.
    pub(super) frame: u64,
}

impl Header {
    fn fields(self) -> [u64; 4] {
        [self.number, self.sent, self.arrived, self.frame]
    }

    /// Writes it to the beginning of a packet.
    pub(super) fn write(self, packet: &mut [u8]) {
        for (to, field) in packet.chunks_exact_mut(8).zip(self.fields()) {
            to.copy_from_slice(&field.to_le_bytes());
        }
    }

    /// From the beginning of a packet. `None` if it is too short.
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let (fields, _) = packet.get(..HEADER)?.as_chunks::<8>();
        let [number, sent, arrived, frame] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(fields[i]));
        Some(Self {
            number,
            sent,
            arrived,
            frame,
        })
    }
}

/// The peer's thread, and the call's socket to it.
#[derive(Debug)]
pub(super) struct Peer {
    /// The call's socket; it does not block.
    pub(super) socket: UdpSocket,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// # Errors
    /// Where there is no loopback network, or no thread.
    pub(super) fn new() -> Result<Self, Error> {
        let what = "calling a peer over loopback (127.0.0.1, UDP)";
        let failed = |e: std::io::Error| Error::kernel(what)(e);
        let ours = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let theirs = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        ours.connect(theirs.local_addr().map_err(failed)?)
            .map_err(failed)?;
        theirs
            .connect(ours.local_addr().map_err(failed)?)
            .map_err(failed)?;
        for socket in [&ours, &theirs] {
            rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER)
                .map_err(|e| failed(e.into()))?;
        }
        ours.set_nonblocking(true).map_err(failed)?;
        theirs
            .set_read_timeout(Some(Duration::from_millis(200)))
            .map_err(failed)?;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("peer".to_owned())
            .spawn(move || reflect(&theirs, &told))
            .map_err(failed)?;
        Ok(Self {
            socket: ours,
            over,
            thread: Some(thread),
        })
    }
}

fn reflect(socket: &UdpSocket, over: &AtomicBool) {
    let mut packet = [0; PACKET];
    while !over.load(Ordering::Relaxed) {
        match socket.recv(&mut packet) {
            Ok(n) => {
                if let Some(mut header) = Header::read(&packet[..n]) {
                    header.arrived = clock::now();
                    header.write(&mut packet);
                    // A packet that cannot be sent is lost, as on any network.
                    let _ = socket.send(&packet[..n]);
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The other socket has been closed, and the call has ended.
            Err(_) => return,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // An empty packet wakes the thread at once. The timeout would, too.
        let _ = self.socket.send(&[]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_back_with_the_time_of_its_arrival() {
        let peer = Peer::new().unwrap();
        peer.socket.set_nonblocking(false).unwrap();
        let sent = Header {
            number: 7,
            sent: clock::now(),
            arrived: 0,
            frame: 3,
        };
        let mut packet = [9; 100];
        sent.write(&mut packet);
        peer.socket.send(&packet).unwrap();
        let mut back = [0; PACKET];
        let n = peer.socket.recv(&mut back).unwrap();
        let header = Header::read(&back[..n]).unwrap();
        assert_eq!((n, header.number, header.frame), (100, 7, 3));
        assert!((sent.sent..=clock::now()).contains(&header.arrived));
        assert_eq!(back[99], 9);
        assert_eq!(Header::read(&back[..31]), None);
    }
}
