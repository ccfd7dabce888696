// A program on the code that is generated from a node's OpenAPI document.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func to[T any](value T) *T { return &value }

func main() {
	ctx := context.Background()
	api := must(NewClientWithResponses(os.Args[1]))
	made := must(api.CreateTopicWithResponse(ctx, CreateTopic{Name: "generated", Partitions: to(int64(2))}))
	records := Records{Records: []Record{
		{Key: to(Value("a")), Value: map[string]any{"item": "tea"}, Partition: to(int64(1))},
		{Key: to(Value("b")), Value: "text", Partition: to(int64(1))},
	}}
	produced := must(api.ProduceRecordsWithResponse(ctx, "generated", &ProduceRecordsParams{}, records))
	read := must(api.ReadRecordsWithResponse(ctx, "generated", 1, &ReadRecordsParams{Offset: to("earliest")}))
	offsets := []OffsetToCommit{{Topic: to("generated"), Partition: 1, Offset: read.JSON200.NextOffset}}
	committed := must(api.CommitOffsetsWithResponse(ctx, "generated", CommitOffsets{Offsets: offsets}))
	missing := must(api.DescribeTopicWithResponse(ctx, "missing", &DescribeTopicParams{}))
	keys := []Value{}
	for _, record := range read.JSON200.Records {
		keys = append(keys, record.Key)
	}
	fmt.Println(string(must(json.Marshal(map[string]any{
		"partitions": len(made.JSON201.Partitions),
		"produced":   produced.JSON200.RecordCount,
		"keys":       keys,
		"committed":  committed.HTTPResponse.StatusCode,
		"problem":    missing.ApplicationproblemJSON404.Code,
	}))))
}
