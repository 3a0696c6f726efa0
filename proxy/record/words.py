"""What events usually look like, as the dictionary that their compression starts from.

Part of the file format: never edited. Better words are a second dictionary with the next number.
"""

EVENTS_1 = (
    b'[[1700000000000000000,"session/start",0,{"client":"claude-code","by":"hint","key":"unnamed",'
    b'"team":"default","org":"default","labels":{}}],[1700000000000000000,"thread/start",0,{"kind":"main",'
    b'"partial":false,"matched_by":"prefix","agent":null,"dialect":"openai_responses","upstream":"openai",'
    b'"provider":"openai","parent":"thr_","parent_turn":"trn_"}],[1700000000000000000,"turn/resume",0,{}],'
    b'[1700000000000000000,"finding","stp_",{"policy":"thinking","kind":"dropped","severity":"warning",'
    b'"consequence":"soft","path":"$[\'messages\'][0][\'content\'][0]","evidence":{},"exchange":"exc_"}],'
    b'[1700000000000000000,"item",0,{"direction":"in","role":"user","kind":"user","form":"text","chars":100,'
    b'"digest":"0000000000000000","exchange":"exc_","preview":"<system-reminder>\\nAs you answer the user"}],'
    b'[1700000000000000000,"item","stp_",{"direction":"out","role":"assistant","kind":"thinking",'
    b'"form":"thinking","chars":1000,"digest":"","at":["content",0],"attempt":0,"exchange":"exc_"}],'
    b'[1700000000000000000,"item",0,{"direction":"out","role":"assistant","kind":"text","form":"output_text",'
    b'"chars":200,"digest":"0000000000000000","at":["output",1,"content",0],"attempt":0,"exchange":"exc_",'
    b'"preview":"I\'ll start by"}],[1700000000000000000,"turn/end",null,{"cause":"completed","steps":4,'
    b'"usage":{"input_tokens":50000,"cache_read_tokens":45000,"cache_write_tokens":4000,"output_tokens":900,'
    b'"reasoning_tokens":100},"cost_usd":"0.0512345","cost_quality":"measured"}],'
    b'[1700000000000000000,"turn/start",0,{"index":0}],[1700000000000000000,"step/start","stp_",{"index":1,'
    b'"model":"claude-sonnet-4-5-20250929","epoch":0,"matched_by":"prefix","exchange":"exc_","number":10}],'
    b'[1700000000000000000,"item",0,{"direction":"in","role":"tool","kind":"tool_result","form":"tool_result",'
    b'"tool":"Bash","call_id":"toolu_01","is_error":false,"chars":800,"digest":"0000000000000000",'
    b'"exchange":"exc_","preview":"total 48\\ndrwxr-xr-x"}],[1700000000000000000,"step/attempt","stp_",'
    b'{"attempt":0,"exchange":"exc_","number":10,"outcome":"complete","status":200,'
    b'"model":"claude-sonnet-4-5-20250929","stop_reason":"tool_use","response_id":"msg_01",'
    b'"usage":{"input_tokens":50000,"cache_read_tokens":45000,"cache_write_tokens":4000,"output_tokens":200},'
    b'"cost_usd":"0.0212345","cost_quality":"measured","arrived_ns":1700000000000000000,'
    b'"sent_ns":1700000000000000000,"first_output_ns":1700000000000000000,"ended_ns":1700000000000000000,'
    b'"streaming":true,"request_bytes":200000,"response_bytes":5000}],[1700000000000000000,"item",0,'
    b'{"direction":"out","role":"assistant","kind":"tool_call","form":"tool_use","tool":"Read",'
    b'"call_id":"toolu_01","chars":90,"digest":"0000000000000000","at":["content",1],"attempt":0,'
    b'"exchange":"exc_","preview":"{\\"file_path\\":\\"/"}],[1700000000000000000,"step/end",0,'
    b'{"stop_reason":"tool_use","usage":{"input_tokens":50000,"cache_read_tokens":45000,'
    b'"cache_write_tokens":4000,"output_tokens":200},"cost_usd":"0.0212345","cost_quality":"measured",'
    b'"attempts":1,"tool_calls":[{"id":"toolu_01","name":"Bash"}],"results_seen":1}]]'
)
