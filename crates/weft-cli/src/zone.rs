//! Local time: HFS and MFS store dates in local time.

use crate::failure::Failure;
use std::sync::OnceLock;
use time::UtcOffset;

/// The seconds by which local time is ahead of UTC, for the whole run of the command.
static OFFSET: OnceLock<i32> = OnceLock::new();

/// 1970-01-01 in seconds since 1904-01-01.
const EPOCH_1904_SECS: i64 = 2_082_844_800;

/// Parses `--timezone` and stores the offset. Called once, while there is only one thread: a change
/// of `TZ` by another would be a race.
pub fn set(text: &str) -> Result<(), Failure> {
    let offset = parse(text)?;
    // A second call, of a test or a helper, has no effect.
    let _ = OFFSET.set(offset);
    Ok(())
}

/// Returns the seconds by which local time is ahead of UTC.
pub fn offset_secs() -> i32 {
    *OFFSET.get_or_init(|| 0)
}

/// Formats the offset in the syntax of `--timezone`.
pub fn text() -> String {
    let offset = offset_secs();
    let (sign, rest) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
    format!("{sign}{:02}:{:02}", rest / 3600, rest / 60 % 60)
}

fn parse(text: &str) -> Result<i32, Failure> {
    match text {
        // If the local offset is unknown, as in a container, it is UTC.
        "local" => Ok(UtcOffset::current_local_offset().map_or(0, UtcOffset::whole_seconds)),
        "utc" | "UTC" | "Z" => Ok(0),
        _ => parse_offset(text).ok_or_else(|| {
            Failure::usage(format!(
                "'{text}' is no time zone: write local, utc, or an offset such as +02:00"
            ))
        }),
    }
}

fn parse_offset(text: &str) -> Option<i32> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':').unwrap_or((rest, "0"));
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    ((0..=14).contains(&hours) && (0..60).contains(&minutes))
        .then_some(sign * (hours * 3600 + minutes * 60))
}

/// Formats a Macintosh date; `never` for 0.
pub fn shown(date: u32) -> String {
    if date == 0 {
        return "never".into();
    }
    crate::output::utc(weft::vfs::Time { secs: i64::from(date) - EPOCH_1904_SECS, nanos: 0 })
}

/// Parses a Macintosh date: `YYYY-MM-DD`, optionally with `HH:MM` or `HH:MM:SS`, `now` or `never`.
pub fn date(text: &str) -> Result<u32, Failure> {
    match text {
        "never" => return Ok(0),
        "now" => return Ok(weft::hfs::unix_now(offset_secs())),
        _ => {}
    }
    parse_date(text).ok_or_else(|| {
        Failure::usage(format!(
            "'{text}' is no date of a Macintosh: write YYYY-MM-DD, \"YYYY-MM-DD HH:MM:SS\", now or \
             never; they go from 1904 to 2040"
        ))
    })
}

fn parse_date(text: &str) -> Option<u32> {
    let (day, clock) = text.split_once([' ', 'T']).unwrap_or((text, "0:0"));
    let mut parts = day.split('-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let mut clock = clock.split(':').map(str::parse::<i64>);
    let (hour, minute) = (clock.next()?.ok()?, clock.next()?.ok()?);
    let second = clock.next().unwrap_or(Ok(0)).ok()?;
    let calendar = time::Month::try_from(u8::try_from(month).ok()?).ok().and_then(|month| {
        time::Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?)
            .ok()
    })?;
    let sound = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
    let days = i64::from(calendar.to_julian_day())
        - i64::from(time::Date::from_ordinal_date(1904, 1).ok()?.to_julian_day());
    let secs = days * 86_400 + hour * 3600 + minute * 60 + second;
    u32::try_from(secs).ok().filter(|_| sound)
}

/// Converts a Macintosh date into a time.
pub fn time_of(date: u32) -> weft::vfs::Time {
    weft::vfs::Time { secs: i64::from(date) - EPOCH_1904_SECS - i64::from(offset_secs()), nanos: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_dates() {
        assert_eq!(parse_offset("+02:00"), Some(7200));
        assert_eq!(parse_offset("-3:30"), Some(-12_600));
        assert_eq!(parse_offset("+5"), Some(18_000));
        for bad in ["2", "+15:00", "+1:60", "+x", ""] {
            assert_eq!(parse_offset(bad), None, "{bad}");
        }
        assert_eq!(parse_date("1904-01-01"), Some(0));
        assert_eq!(parse_date("1970-01-01 00:00:01"), Some(2_082_844_801));
        assert_eq!(shown(parse_date("1984-01-24T09:30").unwrap()), "1984-01-24 09:30:00");
        for bad in ["1903-12-31", "2041-01-01", "2000-13-01", "2000-02-30", "2000-01-01 24:00", "x"]
        {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
    }
}
