//! The two clocks of a process: a monotonic one for epochs, and the time of day for time stamps.

use rustix::time::{ClockId, clock_gettime};
use weft_ringer::Moment;
use weft_vfs::Time;

/// The monotonic time since this machine booted.
pub fn now() -> Moment {
    let now = clock_gettime(ClockId::Boottime);
    Moment(now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000)
}

/// The time of day, as fine as the machine has it: two changes of a file have two times, by which
/// the kernel sees that a file it has cached was changed.
pub fn wall() -> Time {
    Time::from(std::time::SystemTime::now())
}
