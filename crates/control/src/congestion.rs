//! How much media the call may send: Google congestion control as of draft-ietf-rmcat-gcc-02 and G.
//! Carlucci et al., "Analysis and Design of the Google Congestion Control for Web Real-time
//! Communication", ACM MMSys 2016. It is a pure state machine: time arrives as nanoseconds, and
//! nothing is read from anywhere.
//!
//! - **Groups** (draft §5.2): packets sent within 5 ms are one group.
//! - **Gradient**: the slope of a line through the last 20 smoothed, accumulated delay variations.
//!   It is multiplied by gain 4 and by the number of variations (at most 60). This is the trendline
//!   filter that replaced the draft's Kalman filter (MMSys §4, libwebrtc).
//! - **Detector** (draft §5.4, with its gains): over-use when the gradient exceeds an adaptive
//!   threshold for 10 ms and does not fall. Under-use when it is below the threshold's negative.
//! - **Rate** (draft §5.5): on over-use 0.85 × what arrived in the last half second. On under-use
//!   it is held. Else it rises by 8 % a second, or near the last capacity by half a packet per
//!   response time. It never rises above 1.5 × what arrived.
//! - **Loss** (draft §6), every half second: over 10 % lost: × (1 − 0.5 × loss). Under 2 %: × 1.05.
//! - **Result** (draft §6): the smaller of the two, between floor and ceiling.
//!
//! Quell's own part is the start: the rate doubles every half second until the first sign of
//! congestion. libwebrtc sends probing bursts instead. With 8 % a second alone a call would take
//! half a minute to begin.

use std::collections::VecDeque;

/// Packets leave in bursts at this interval in nanoseconds (libwebrtc's pacer).
pub const PACE_NS: u64 = 5_000_000;
/// Packets leave at most this many times as fast as media is made (libwebrtc's pacer).
pub const PACE: f64 = 2.5;
/// No frame is encoded behind so many frames' worth of unsent packets.
pub const BACKLOG: f64 = 2.0;
/// Nanoseconds between two reports ([`Congestion::report`]).
pub const REPORT_NS: u64 = 100_000_000;
/// The lowest rate, as a part of the highest.
pub const FLOOR: f64 = 0.05;
/// Where the rate of a new call begins, as a part of the highest.
pub const START: f64 = 0.25;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Packets sent within this time are one group.
const GROUP_NS: u64 = 5 * MILLISECOND;
/// How many delay variations the line has.
const LINE: usize = 20;
/// How much of the smoothed delay is kept per variation.
const SMOOTHING: f64 = 0.9;
const GAIN: f64 = 4.0;
const MOST_DELTAS: u32 = 60;
const THRESHOLD_MS: f64 = 12.5;
const THRESHOLDS_MS: (f64, f64) = (6.0, 600.0);
/// Gains of the threshold per millisecond: when rising, when falling.
const ADAPT: (f64, f64) = (0.0087, 0.039);
/// A gradient so far above the threshold is an outlier. The threshold does not adapt to it.
const OUTLIER_MS: f64 = 15.0;
const OVERUSE_NS: u64 = 10 * MILLISECOND;
const BACK_OFF: f64 = 0.85;
const PER_SECOND: f64 = 1.08;
/// The rate of arrival is measured over this time.
const ARRIVED_NS: u64 = SECOND / 2;
const LOSS_NS: u64 = SECOND / 2;
const DOUBLING_NS: u64 = SECOND / 2;
/// What is expected on top of the round trip before a change shows (draft §5.5).
const RESPONSE_NS: u64 = 100 * MILLISECOND;
const PACKET_BYTES: f64 = 1200.0;
const CAPACITY_WEIGHT: f64 = 0.05;
const CAPACITY_DEVIATION: (f64, f64) = (0.4, 2.5);

/// What the detector concludes from the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    /// Delay rises: the path transports less than is sent.
    Over,
    /// Delay falls: a queue is being emptied.
    Under,
    /// Neither of the two.
    Normal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No sign of congestion has appeared yet.
    Start,
    Increase,
    Hold,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    first_sent: u64,
    last_sent: u64,
    last_arrived: u64,
}

/// The estimate of the path's delay gradient, and the conclusion.
#[derive(Debug)]
struct Detector {
    before: Option<Group>,
    now: Option<Group>,
    accumulated_ms: f64,
    smoothed_ms: f64,
    deltas: u32,
    /// (time of arrival, smoothed accumulated delay), both in milliseconds.
    line: VecDeque<(f64, f64)>,
    origin: Option<u64>,
    threshold_ms: f64,
    updated: Option<u64>,
    gradient_before: f64,
    over_since: Option<u64>,
    usage: Usage,
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Detector {
    fn new() -> Self {
        Self {
            before: None,
            now: None,
            accumulated_ms: 0.0,
            smoothed_ms: 0.0,
            deltas: 0,
            line: VecDeque::with_capacity(LINE + 1),
            origin: None,
            threshold_ms: THRESHOLD_MS,
            updated: None,
            gradient_before: 0.0,
            over_since: None,
            usage: Usage::Normal,
        }
    }

    fn packet(&mut self, sent: u64, arrived: u64) {
        match &mut self.now {
            Some(group) if sent.saturating_sub(group.first_sent) <= GROUP_NS => {
                group.last_sent = group.last_sent.max(sent);
                group.last_arrived = group.last_arrived.max(arrived);
            }
            now => {
                let done = now.replace(Group {
                    first_sent: sent,
                    last_sent: sent,
                    last_arrived: arrived,
                });
                if let Some(done) = done {
                    if let Some(before) = self.before {
                        self.variation(before, done);
                    }
                    self.before = Some(done);
                }
            }
        }
    }

    fn variation(&mut self, before: Group, now: Group) {
        let apart_sent = ms(now.last_sent.saturating_sub(before.last_sent));
        let apart_arrived = ms(now.last_arrived) - ms(before.last_arrived);
        self.deltas = (self.deltas + 1).min(MOST_DELTAS);
        self.accumulated_ms += apart_arrived - apart_sent;
        self.smoothed_ms = SMOOTHING * self.smoothed_ms + (1.0 - SMOOTHING) * self.accumulated_ms;
        let origin = *self.origin.get_or_insert(now.last_arrived);
        let at = ms(now.last_arrived.saturating_sub(origin));
        self.line.push_back((at, self.smoothed_ms));
        if self.line.len() > LINE {
            self.line.pop_front();
        }
        if self.line.len() == LINE {
            let slope = slope(&self.line).unwrap_or(0.0);
            self.detect(f64::from(self.deltas) * slope * GAIN, now.last_arrived);
        }
    }

    fn detect(&mut self, gradient: f64, at: u64) {
        if gradient > self.threshold_ms {
            let since = *self.over_since.get_or_insert(at);
            if at.saturating_sub(since) >= OVERUSE_NS && gradient >= self.gradient_before {
                self.usage = Usage::Over;
            }
        } else {
            self.over_since = None;
            self.usage = if gradient < -self.threshold_ms {
                Usage::Under
            } else {
                Usage::Normal
            };
        }
        self.gradient_before = gradient;
        let size = gradient.abs();
        if size <= self.threshold_ms + OUTLIER_MS {
            let gain = if size < self.threshold_ms {
                ADAPT.1
            } else {
                ADAPT.0
            };
            let since = self
                .updated
                .map_or(0.0, |u| ms(at.saturating_sub(u)).min(100.0));
            self.threshold_ms += gain * (size - self.threshold_ms) * since;
            self.threshold_ms = self.threshold_ms.clamp(THRESHOLDS_MS.0, THRESHOLDS_MS.1);
        }
        self.updated = Some(at);
    }
}

/// The slope of the least-squares line. `None` when all points have one abscissa.
fn slope(points: &VecDeque<(f64, f64)>) -> Option<f64> {
    let n = points.len() as f64;
    let (x, y) = points
        .iter()
        .fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let (up, down) = points.iter().fold((0.0, 0.0), |(up, down), p| {
        (up + (p.0 - x) * (p.1 - y), down + (p.0 - x).powi(2))
    });
    (down > 0.0).then(|| up / down)
}

/// What arrived when congestion showed: mean in kbit/s, and variance relative to it (libwebrtc's
/// estimator, with its weights and bounds).
#[derive(Clone, Copy, Debug)]
struct Capacity {
    mean: f64,
    deviation: f64,
}

impl Capacity {
    fn of(arrived: f64, before: Option<Self>) -> Self {
        let now = arrived * 8.0 / 1e3;
        let Some(before) = before else {
            return Self {
                mean: now,
                deviation: CAPACITY_DEVIATION.0,
            };
        };
        let mean = before.mean + CAPACITY_WEIGHT * (now - before.mean);
        let off = (before.mean - now).powi(2) / mean.max(1.0);
        let deviation = before.deviation + CAPACITY_WEIGHT * (off - before.deviation);
        Self {
            mean,
            deviation: deviation.clamp(CAPACITY_DEVIATION.0, CAPACITY_DEVIATION.1),
        }
    }

    /// How far `arrived` is from it, in standard deviations.
    fn off(self, arrived: f64) -> f64 {
        (arrived * 8.0 / 1e3 - self.mean) / (self.deviation * self.mean.max(1.0)).sqrt()
    }
}

/// The rate controller. Rates are bytes per second.
#[derive(Debug)]
pub struct Congestion {
    floor: f64,
    ceiling: f64,
    by_delay: f64,
    by_loss: f64,
    state: State,
    detector: Detector,
    /// (arrival, bytes) of the last half second.
    arrived: VecDeque<(u64, u64)>,
    arrived_bytes: u64,
    capacity: Option<Capacity>,
    updated: Option<u64>,
    loss_from: Option<u64>,
    expected: u64,
    received: u64,
}

impl Congestion {
    /// Starts at `start`. The rate is always between `floor` and `ceiling`.
    #[must_use]
    pub fn new(floor: f64, start: f64, ceiling: f64) -> Self {
        Self {
            floor,
            ceiling,
            by_delay: start.clamp(floor, ceiling),
            by_loss: ceiling,
            state: State::Start,
            detector: Detector::new(),
            arrived: VecDeque::new(),
            arrived_bytes: 0,
            capacity: None,
            updated: None,
            loss_from: None,
            expected: 0,
            received: 0,
        }
    }

    /// The rate to send at.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.by_delay
            .min(self.by_loss)
            .clamp(self.floor, self.ceiling)
    }

    /// A packet of `bytes` was acknowledged. `sent` and `arrived` are on the clocks of sender and
    /// peer.
    pub fn packet(&mut self, sent: u64, arrived: u64, bytes: u64) {
        self.detector.packet(sent, arrived);
        self.arrived.push_back((arrived, bytes));
        self.arrived_bytes += bytes;
        self.forget(arrived);
    }

    fn forget(&mut self, now: u64) {
        while let Some((at, bytes)) = self.arrived.front().copied()
            && at + ARRIVED_NS <= now
        {
            self.arrived.pop_front();
            self.arrived_bytes -= bytes;
        }
    }

    /// A report, some ten times a second. `rtt`: the present round-trip time. `expected`: how many
    /// packets since the last report must have come back. `received`: how many did. Returns the new
    /// rate.
    pub fn report(&mut self, now: u64, rtt: u64, expected: u64, received: u64) -> f64 {
        self.forget(now);
        let arrived = self.arrived_bytes as f64 * SECOND as f64 / ARRIVED_NS as f64;
        let since = self
            .updated
            .map_or(0, |u| now.saturating_sub(u).min(SECOND));
        self.updated = Some(now);
        self.delay(arrived, since, rtt);
        self.loss(now, expected, received);
        self.rate()
    }

    fn delay(&mut self, arrived: f64, since: u64, rtt: u64) {
        match self.detector.usage {
            Usage::Over => {
                self.by_delay = self.by_delay.min(BACK_OFF * arrived.max(self.floor));
                // Far below what the path once transported: it is another path now.
                let before = self.capacity.filter(|c| c.off(arrived) > -3.0);
                self.capacity = Some(Capacity::of(arrived, before));
                self.state = State::Hold;
                // What is in flight still shows this over-use. The next one counts separately.
                self.detector.over_since = None;
                self.detector.usage = Usage::Normal;
            }
            Usage::Under => self.state = self.after_trouble(State::Hold),
            Usage::Normal => {
                let raised = self.raised(arrived, since, rtt);
                // Data that is not sent proves no capacity. But a rate once reached is not lost by
                // sending less.
                let most = match self.state {
                    State::Start => 2.0 * arrived,
                    State::Increase | State::Hold => 1.5 * arrived,
                };
                if self.state != State::Hold {
                    self.by_delay = raised.min(most).max(self.by_delay);
                }
                self.state = self.after_trouble(State::Increase);
            }
        }
        self.by_delay = self.by_delay.clamp(self.floor, self.ceiling);
    }

    fn after_trouble(&self, state: State) -> State {
        if self.state == State::Start && state == State::Increase {
            State::Start
        } else {
            state
        }
    }

    fn raised(&mut self, arrived: f64, since: u64, rtt: u64) -> f64 {
        if self.state == State::Start {
            return self.by_delay * 2f64.powf(since as f64 / DOUBLING_NS as f64);
        }
        self.capacity = self.capacity.filter(|c| c.off(arrived) < 3.0);
        if self.capacity.is_some() {
            let part = since as f64 / (rtt + RESPONSE_NS) as f64;
            self.by_delay + 0.5 * part.min(1.0) * PACKET_BYTES
        } else {
            self.by_delay * PER_SECOND.powf(since as f64 / SECOND as f64)
        }
    }

    fn loss(&mut self, now: u64, expected: u64, received: u64) {
        self.expected += expected;
        self.received += received.min(expected);
        let from = *self.loss_from.get_or_insert(now);
        if now.saturating_sub(from) < LOSS_NS || self.expected == 0 {
            return;
        }
        let lost = (self.expected - self.received) as f64 / self.expected as f64;
        if lost > 0.1 {
            // Based on what is really sent. A rate far below its loss limit would not notice
            // otherwise.
            self.by_loss = self.rate() * (1.0 - 0.5 * lost);
            self.state = State::Hold;
        } else if lost < 0.02 {
            self.by_loss *= 1.05;
        }
        self.by_loss = self.by_loss.clamp(self.floor, self.ceiling);
        (self.expected, self.received) = (0, 0);
        self.loss_from = Some(now);
    }
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates and times are positive and small"
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KB: f64 = 1e3;

    /// A path with a capacity and a queue before it, and a call on it.
    struct Path {
        capacity: f64,
        delay: u64,
        /// When the queue will be empty.
        free: u64,
        now: u64,
        control: Congestion,
    }

    impl Path {
        fn new(capacity: f64, control: Congestion) -> Self {
            Self {
                capacity,
                delay: 5 * MILLISECOND,
                free: 0,
                now: 0,
                control,
            }
        }

        /// Sends 1200-byte packets at the requested rate. Returns the queue's longest delay in
        /// nanoseconds.
        fn run(&mut self, ns: u64) -> u64 {
            let end = self.now + ns;
            let (mut reported, mut count, mut longest) = (self.now, 0, 0);
            while self.now < end {
                let took = (PACKET_BYTES / self.capacity * 1e9).round() as u64;
                self.free = self.free.max(self.now) + took;
                longest = longest.max(self.free - self.now);
                self.control.packet(self.now, self.free + self.delay, 1200);
                count += 1;
                self.now += (PACKET_BYTES / self.control.rate() * 1e9).round() as u64;
                if self.now >= reported + 100 * MILLISECOND {
                    let rtt = self.free.saturating_sub(self.now) + self.delay;
                    self.control.report(self.now, rtt, count, count);
                    (reported, count) = (self.now, 0);
                }
            }
            longest
        }
    }

    fn control() -> Congestion {
        Congestion::new(100.0 * KB, 300.0 * KB, 4_000.0 * KB)
    }

    #[test]
    fn on_a_wide_path_the_ceiling_is_reached_in_seconds_and_kept() {
        let mut path = Path::new(1e9, control());
        path.run(4 * SECOND);
        assert_eq!(path.control.rate(), 4_000.0 * KB);
        path.run(10 * SECOND);
        assert_eq!(path.control.rate(), 4_000.0 * KB);
    }

    #[test]
    fn on_a_narrow_path_the_rate_uses_most_without_a_queue() {
        let mut path = Path::new(1_000.0 * KB, control());
        path.run(20 * SECOND);
        let (mut sum, mut longest) = (0.0, 0);
        for _ in 0..100 {
            longest = longest.max(path.run(SECOND / 10));
            sum += path.control.rate() / 100.0;
        }
        assert!((500.0 * KB..=1_150.0 * KB).contains(&sum), "{sum}");
        assert!(longest < SECOND / 2, "a queue of {longest} ns");
    }

    #[test]
    fn a_path_that_narrows_is_followed_down_and_up_again() {
        let mut path = Path::new(3_000.0 * KB, control());
        path.run(10 * SECOND);
        let wide = path.control.rate();
        path.capacity = 600.0 * KB;
        path.run(10 * SECOND);
        let narrow = path.control.rate();
        assert!(narrow < 0.4 * wide, "{wide} then {narrow}");
        path.capacity = 1e9;
        path.run(40 * SECOND);
        assert!(path.control.rate() > 2.0 * narrow);
    }

    #[test]
    fn lost_packets_lower_the_rate_and_few_do_not() {
        let after = |lost: u64| {
            let mut control = control();
            for n in 0..40 {
                let now = n * 100 * MILLISECOND;
                for i in 0..10 {
                    control.packet(now + i, now + i, 40_000);
                }
                control.report(now, MILLISECOND, 100, 100 - lost);
            }
            control.rate()
        };
        assert_eq!(after(1), 4_000.0 * KB);
        assert!(after(30) < 0.5 * after(5));
    }

    #[test]
    fn a_silent_path_changes_nothing() {
        let mut control = control();
        for n in 0..100 {
            control.report(n * 100 * MILLISECOND, MILLISECOND, 0, 0);
        }
        assert_eq!(control.rate(), 300.0 * KB);
    }

    /// Packets and reports in any order, with any times.
    fn any_story() -> impl Strategy<Value = Vec<(u64, u64, u64, u64, bool)>> {
        let story = (
            0..200 * MILLISECOND,
            0..SECOND,
            0u64..2_000,
            0u64..200,
            any::<bool>(),
        );
        prop::collection::vec(story, 1..400)
    }

    fn play(story: &[(u64, u64, u64, u64, bool)], control: &mut Congestion) -> Vec<f64> {
        let mut now = 0;
        let mut rates = Vec::new();
        for (step, late, bytes, lost, report) in story {
            now += step;
            if *report {
                rates.push(control.report(now, *late, 200, 200 - lost));
            } else {
                control.packet(now, now + late, *bytes);
            }
        }
        rates
    }

    proptest! {
        #[test]
        fn never_below_the_floor_nor_above_the_ceiling_whatever_arrives(story in any_story()) {
            for rate in play(&story, &mut control()) {
                prop_assert!((100.0 * KB..=4_000.0 * KB).contains(&rate), "{}", rate);
            }
        }

        #[test]
        fn the_same_story_gives_the_same_rates(story in any_story()) {
            prop_assert_eq!(play(&story, &mut control()), play(&story, &mut control()));
        }

        #[test]
        fn steadily_rising_delay_lowers_the_rate(rise in 2u64..20, settle in 300u64..500) {
            let mut control = control();
            let (mut now, mut late) = (0, MILLISECOND);
            let mut step = |control: &mut Congestion, rise: u64, packets: u64| {
                for n in 0..packets {
                    now += 10 * MILLISECOND;
                    late += rise * MILLISECOND;
                    control.packet(now, now + late, (control.rate() / 100.0) as u64);
                    if n % 10 == 9 {
                        control.report(now, late, 10, 10);
                    }
                }
                control.rate()
            };
            let steady = step(&mut control, 0, settle);
            prop_assert_eq!(steady, 4_000.0 * KB);
            let after = step(&mut control, rise, 60);
            prop_assert!(after < 0.95 * steady, "{} then {}", steady, after);
        }
    }
}
