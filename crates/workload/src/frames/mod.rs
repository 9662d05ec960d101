//! A video call's two programs: the *call* stage encodes frames and exchanges packets with a peer.
//! The *display* stage composes them on a screen. The model is the case study of Gondi, Biswas and
//! Yun (WebRTC next to an X server): bursty demand at the frame times, and outcomes that a person
//! on the call would notice. Everything that is reported really happened: packets came back, and
//! frames were encoded, decoded and composed.
//!
//! ```text
//! camera ─► capture ─► encode ─► pace ─► UDP ─► peer (thread; reflects)
//!                                                 │
//!            display ◄─ shared memory ◄─ decode ◄─┘    rate control ◄─ when packets came back
//! ```
//!
//! It is a call with itself: what comes back from the peer is decoded. The peer is the far end and
//! the network in one, on the same CPUs as the call.
//!
//! Late frames are dropped, never queued:
//! - a frame time that passed while the encoder was busy is skipped;
//! - a frame behind two frames' worth of unsent packets is not encoded;
//! - a frame that has not come back whole after three frame times is given up.
//!
//! The stages are processes of their own. They find each other by a name in the abstract socket
//! namespace made from their parent's PID ([`meeting_point`]). Each works alone, too. Memory is
//! anonymous (`memfd`): neither name nor memory remains, whatever ends the stages.
//!
//! | stage | metric | one value per | is |
//! |---|---|---|---|
//! | both | `bandwidth_mb_s` | window | program bytes of the passes over frames |
//! | both | `frames_per_s` | second | frames that came back and were decoded; frames composed |
//! | call | `rtt_ms` | packet | from sending to handling its reflection |
//! | call | `media_kb_s` | second | 10^3 bytes of packets that came back |
//! | call | `wasted_packets` | second | packets lost, or back too late for their frame |
//! | call | `encode_ms` | frame | from capture to the last piece encoded |
//! | display | `compose_ms` | frame | from taking a frame to its being in the framebuffer |
//! | display | `age_ms` | frame of a call stage | from capture to framebuffer |

mod call;
mod display;
mod peer;
mod picture;
mod share;
mod work;

pub(crate) use call::Call;
pub(crate) use display::Display;

/// Where the stages of one run meet. Both are children of the runner, or of one shell.
pub(crate) fn meeting_point() -> String {
    let parent = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    format!("quell-frames-{parent}")
}
