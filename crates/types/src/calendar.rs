//! Seconds since 1970 as people write them. The caller supplies the seconds: nothing here reads a
//! clock.

/// `YYYY-MM-DD HH:MM:SS` in UTC. The date follows Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`: years begin in March, so that the leap day is the last one.
#[must_use]
pub fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year + era * 400 + carry;
    format!(
        "{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_agrees_with_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_200), "2024-03-01 00:00:00");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59");
    }
}
