//! A video call's two programs: the *call* stage encodes frames and exchanges packets with a peer,
//! the *display* stage composes them on a screen. After the case study of Gondi, Biswas and Yun
//! (WebRTC beside an X server): bursty demand at the times of the frames, and outcomes that a
//! person on the call would notice. Whatever is reported happened: packets were sent and came back,
//! frames were encoded, decoded and composed, when the machine got it done.
//!
//! ```text
//! camera ─► capture ─► encode ─► pace ─► UDP ─► peer (thread; reflects)
//!                                                 │
//!            display ◄─ shared memory ◄─ decode ◄─┘        rate control ◄─ when packets came back
//! ```
//!
//! A call with itself: what comes back from the peer is what is decoded. The peer is the far end
//! and the network in one, on the same CPUs as the call. Frames that are late are dropped, never
//! queued: a frame time that passed while the encoder was busy is skipped; a frame that waits
//! behind two frames' worth of unsent packets is not encoded; one that has not come back whole
//! after three frame times is given up.
//!
//! The stages are processes of their own that find each other by a name in the abstract socket
//! namespace made from their parent's PID ([`meeting_point`]); each works alone, too. Memory is
//! anonymous (`memfd`): nothing is left of either, whatever ends them.
//!
//! | stage | metric | one value per | is |
//! |---|---|---|---|
//! | both | `bandwidth_mb_s` | window | program bytes of the passes over frames |
//! | both | `frames_per_s` | second | frames that came back whole and were decoded; frames composed |
//! | call | `rtt_ms` | packet | from sending to handling its reflection |
//! | call | `media_kb_s` | second | 10^3 bytes of packets that came back |
//! | call | `encode_ms` | frame | from capture to the last piece encoded |
//! | display | `compose_ms` | frame | from taking a frame to its being in the framebuffer |
//! | display | `age_ms` | frame of a call stage | from capture to framebuffer |

mod call;
mod congestion;
mod display;
mod peer;
mod picture;
mod share;
mod work;

pub(crate) use call::Call;
pub(crate) use display::Display;

/// Where the stages of one run meet: both are children of the runner (or of one shell).
pub(crate) fn meeting_point() -> String {
    let parent = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    format!("quell-frames-{parent}")
}
