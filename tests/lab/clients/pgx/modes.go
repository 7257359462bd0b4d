// The units of work: each gets a connection, and the number of its worker.
package main

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	row    = "SELECT id, bucket, payload FROM lab_rows WHERE id = $1"
	rows   = "SELECT id, bucket, payload FROM lab_rows WHERE id <= $1"
	ids    = "SELECT id FROM lab_rows WHERE id BETWEEN $1 AND $1 + 99"
	scan   = "SELECT count(*) FROM lab_rows WHERE bucket = $1"
	sleep  = "SELECT pg_sleep($1)"
	change = "UPDATE lab_rows SET changed = changed + 1 WHERE id = $1 RETURNING id"
)

var errShort = errors.New("ShortAnswer") // the table is smaller than the options say

type unit func(*app, *pgx.Conn, int) error

var modes = map[string]unit{
	"small": anyRow, "bulk": bulk, "slow": slow, "scan": count, "n+1": oneByOne, "connect": anyRow,
	"write": inTransaction(write), "write-own": writeOwn, "stream": stream,
	"hold-sleep": inTransaction(hold(func(*app) { pause(*holdMS) })),
	"hold-cpu":   inTransaction(hold(func(a *app) { turn(int(*holdMS * a.turnsPerMS)) })),
}

func inTransaction(inner unit) unit {
	return func(a *app, conn *pgx.Conn, number int) error {
		return pgx.BeginFunc(ctx, conn, func(pgx.Tx) error { return inner(a, conn, number) })
	}
}

// fetch reads as many rows as are expected, and gives each to use, which may be nil.
func (a *app) fetch(conn *pgx.Conn, expected int, use func([]any), statement string, value any) error {
	began := time.Now()
	found, err := conn.Query(ctx, statement, value)
	if err != nil {
		return err
	}
	defer found.Close()
	count := 0
	for ; found.Next(); count++ {
		values, err := found.Values()
		if err != nil {
			return err
		}
		if use != nil {
			use(values)
		}
	}
	if found.Err() != nil {
		return found.Err()
	}
	a.note(&a.queryMS, began)
	if count != expected {
		return errShort
	}
	return nil
}

func anyRow(a *app, conn *pgx.Conn, _ int) error {
	return a.fetch(conn, 1, nil, row, 1+rand.IntN(*idCount))
}

func bulk(a *app, conn *pgx.Conn, _ int) error {
	length := 0
	return a.fetch(conn, *rowCount, func(values []any) { length += len(values[2].(string)) }, rows, *rowCount)
}

func slow(a *app, conn *pgx.Conn, number int) error {
	if err := a.fetch(conn, 1, nil, sleep, *sleepMS/1e3); err != nil {
		return err
	}
	return anyRow(a, conn, number)
}

func count(a *app, conn *pgx.Conn, _ int) error { return a.fetch(conn, 1, nil, scan, rand.IntN(1000)) }

func write(a *app, conn *pgx.Conn, _ int) error { return a.fetch(conn, 1, nil, change, *rowID) }

func writeOwn(a *app, conn *pgx.Conn, number int) error {
	return a.fetch(conn, 1, nil, change, number+1)
}

func oneByOne(a *app, conn *pgx.Conn, _ int) error {
	var found []any
	err := a.fetch(conn, 100, func(values []any) { found = append(found, values[0]) }, ids, 1+rand.IntN(*idCount-99))
	for _, id := range found {
		if err == nil {
			err = a.fetch(conn, 1, nil, row, id)
		}
	}
	return err
}

func hold(meanwhile func(*app)) unit {
	return func(a *app, conn *pgx.Conn, number int) error {
		err := anyRow(a, conn, number)
		if err == nil {
			meanwhile(a)
		}
		return err
	}
}

func stream(a *app, conn *pgx.Conn, _ int) error {
	count := 0
	return a.fetch(conn, *rowCount, func([]any) {
		if count++; count%100 == 0 {
			pause(*rowSleepMS)
		}
	}, rows, *rowCount)
}

func pause(milliseconds float64) { time.Sleep(time.Duration(milliseconds * 1e6)) }

var sink atomic.Uint64 // what is computed is used, so that the compiler cannot leave it out

func turn(times int) {
	value := uint64(88172645463325252)
	for range times {
		value ^= value << 13
		value ^= value >> 7
		value ^= value << 17
	}
	sink.Store(value)
}

// calibrate tells the turns of a millisecond on a free core: the fastest of many short tries.
func calibrate() float64 {
	const turns = 100_000
	fastest := math.Inf(1)
	for range 50 {
		began := time.Now()
		turn(turns)
		fastest = min(fastest, time.Since(began).Seconds()*1e3)
	}
	return turns / fastest
}
