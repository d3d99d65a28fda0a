# Starts PostgreSQL as a single user, which replays its log, and reads the rows, which must be the first
# ones, as far as "done N" was promised. Variables as in setup.sh.
# The number of the process in postmaster.pid may be that of a process of the check.
rm -f data/postmaster.pid
rows=$(echo "select string_agg(a || (b = repeat(chr(48 + a), 6000))::text, chr(32) order by a) as r from t" |
    $as "$bin/postgres" --single -D data postgres 2>"$TMPDIR/log$$" | sed -n 's/.*r = "\(.*\)".*typeid.*/\1/p')
promised=$(tail -n 1 "${WEFT_PROMISES:-/dev/null}")
# Of no promise the first row.
last=${promised#done }
case "1true 2true 3true 4true " in "$rows "*)
    case " $rows" in *" ${last:-1}true"*) rm "$TMPDIR/log$$" && exit 0 ;; esac ;;
esac
echo "promised: $promised; found: $rows"
tail -n 5 "$TMPDIR/log$$"
rm "$TMPDIR/log$$"
exit 1
