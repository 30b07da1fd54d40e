use {deadpool_redis as _, governor as _, limitador as _, redis as _, tollgate as _, tower_governor as _, tower_rate_limiter as _};
fn main(){}
